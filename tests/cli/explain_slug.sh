# By slug; no values, the template stays as it is.
kvcanary explain scatter-pool-out-must-be-int32
