// For AVX2 and FMA: a vector takes two registers; 4 sums, 2 weights and an input take 14 of 16.
#define BFIO_KERNELS kAvx2Kernels
#define BFIO_KERNELS_NAME "avx2"
#define BFIO_REGISTER_BYTES 32
#define BFIO_TILE_ROWS 2
#define BFIO_TILE_COLUMNS 2
#include "worker/engine/cpu/kernels_body.h"
