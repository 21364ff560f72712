// Ends the process with a message when a mapped file is truncated or becomes unreadable.
//
// Purpose: accessing such a page raises SIGBUS. No check beforehand can prevent it, because a file may be
// truncated at any time after it was opened. A program that maps checkpoints installs ExitOnBusError once;
// then one line names the file, and the exit code is 1. Overwriting a file in place is not detected: replace
// checkpoints by renaming. Threads: any.
#ifndef BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_
#define BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_

#include <cstddef>
#include <string>

namespace bfio::worker {

// From now on a bus error in a registered range writes "PROGRAM: FILE: ..." to standard error and exits with
// 1. A bus error elsewhere ends the process by the signal. `program` is a literal.
void ExitOnBusError(const char* program);

// The handler looks up files by these ranges. Ranges beyond a few thousand at a time are not registered.
void RegisterMappedRange(const void* begin, size_t size, const std::string& path);
void ForgetMappedRange(const void* begin);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_BUS_ERROR_H_
