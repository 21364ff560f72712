// For any x86-64 (SSE2) and for other processors.
#define BFIO_KERNELS kGenericKernels
#define BFIO_KERNELS_NAME "generic"
#define BFIO_REGISTER_BYTES 16
#define BFIO_TILE_ROWS 1
#define BFIO_TILE_COLUMNS 2
#include "worker/engine/cpu/kernels_body.h"
