"""The cases of rope_pool_fused that are measured: 36, each cold and hot."""
SHAPES = [(32, 8, 128), (8, 1, 128), (64, 8, 128), (64, 8, 64)]  # Hq, Hkv, D
TOKENS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536]
