// Fake NCCL and the part of CUDA that the NCCL barrier calls, linked in their place.
//
// Purpose: runs worker/barrier/nccl in tests, with errors, aborts and peers that join late or never. A rank
// is a thread with a device of its own. Operations queued in a stream run in order when its event is queried,
// and a collective when all ranks have reached it. Undefined behaviour of NCCL is recorded: work in a stream
// behind a launch in progress, memory that is changed during a copy, use of a communicator after its end,
// memory freed behind work that may never end. Invalid memory is for AddressSanitizer.
//
// Threads: the functions from any; settings and counts while no rank runs, or under `mutex`.
#pragma once

#include <mutex>

#include "gmock/gmock.h"

namespace bfio::testing {

struct FakeNccl {
  std::recursive_mutex mutex;

  int devices = 64;
  // Whether ranks waiting for a peer learn that it has aborted: true over sockets, false over NVLink.
  bool peers_hear = true;
  // How many queries find a launch still in progress.
  int launch_polls = 2;
  // By function: what its next call, by any rank, returns.
  std::map<std::string, int> faults;
  bool abort_hangs = false;

  // Current numbers of objects.
  int communicators = 0, blocks = 0, streams = 0, events = 0;
  // Counts since ResetFake.
  int unique_ids = 0, aborts = 0;
  std::vector<std::string> undefined;
};
// The fake of this process.
FakeNccl& Fake();
void ResetFake();
inline void ExpectNothingLeftOrUndefined() {
  EXPECT_THAT(Fake().undefined, ::testing::IsEmpty());
  EXPECT_EQ(Fake().communicators + Fake().blocks + Fake().streams + Fake().events, 0);
}

}  // namespace bfio::testing
