# A message pasted without quotes arrives as many arguments; the slug in brackets is enough.
kvcanary explain kvcanary: something newer is NULL [null-argument] | head -4
