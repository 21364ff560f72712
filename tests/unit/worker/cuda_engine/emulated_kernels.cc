// The row kernels and the sampler compiled for the emulator instead of a GPU.
#include "worker/engine/cuda/kernels/row_kernels.cu"
#include "worker/engine/cuda/kernels/sample.cu"
