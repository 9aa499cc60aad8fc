# A path of 2,200 bytes is as good as a short one: of a manifest, its pages, and pages without one.
part=$(printf '%0199d' 7); deep=$part
for _ in {1..10}; do deep=$deep/$part; done
mkdir -p "$deep"; printf '%064d' 0 > "$deep/page"
echo '{"kvc.pages":1,"layout":"layer_first","dtype":"F32","head_dim":4,"page_rows":2,"pages":["page"]}' > "$deep/manifest"
kvcanary check "$deep/manifest" | tr -s 07; echo "exit ${PIPESTATUS[0]}"
kvcanary check "$deep" --manifest "$deep/manifest" | tr -s 07; echo "exit ${PIPESTATUS[0]}"
mkdir hicache "$deep/hicache"; page=0123456789abcdef0123456789abcdef_model.bin
printf '%064d' 0 | tee hicache/$page > "$deep/hicache/$page"
kvcanary info hicache | tail -n +2 > short; kvcanary info "$deep/hicache" | tail -n +2 | diff short - && echo same
