// A mapped file that is cut, or that the disk cannot read any more, ends the process with a message.
//
// Purpose: touching such a page raises SIGBUS, which no check beforehand can rule out: the file may be cut at
// any time after it was opened. A program that maps checkpoints installs ExitOnBusError once; then one line
// names the file, and the exit code is 1. What stays unseen is a file that is overwritten in place: replace
// checkpoints by renaming. Threads: any.
#ifndef BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_
#define BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_

#include <cstddef>
#include <string>

namespace bfio::worker {

// From now on a bus error in a registered range writes "PROGRAM: FILE: ..." to standard error and ends the
// process with 1; one elsewhere ends it by the signal. `program` is a literal.
void ExitOnBusError(const char* program);

// The handler finds ranges by these. Beyond a few thousand at a time, ranges are not registered.
void RegisterMappedRange(const void* begin, size_t size, const std::string& path);
void ForgetMappedRange(const void* begin);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_
