/* The compiled kernels, one image a .cu file, as the build embeds them (cmake/cuda.cmake). */
#ifndef KVC__CUDA_IMAGES_H
#define KVC__CUDA_IMAGES_H

struct kvc__image {
	const char *name; /* of the .cu file; its kernels are called kvc_<name>_... */
	const void *data;
};
extern const struct kvc__image kvc__images[];
extern const int kvc__image_count;

#endif
