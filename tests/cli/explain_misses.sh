# What cannot be explained: exit code 2, the nearest slug, nothing on standard output.
kvcanary explain v-pool-shape-must-match; echo "exit $?"
kvcanary explain 'shape of v_pool must match that of k_pool'; echo "exit $?"
kvcanary explain ''; echo "exit $?"
echo " " | kvcanary explain -; echo "exit $?"
kvcanary explain - < .; echo "exit $?"
# Which entry is nearest to nonsense depends on the catalogue.
kvcanary explain "$(printf 'two\tlines\nof \033[31mnonsense')" 2>&1 | grep -v hint
echo nothing here | kvcanary explain - 2>&1 | grep -v hint
kvcanary explain --list no-such-word 2>&1 | grep -v hint
