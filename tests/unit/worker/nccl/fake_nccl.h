// NCCL and the part of CUDA that the NCCL barrier calls, without either: linked in their place.
//
// Purpose: worker/barrier/nccl runs in tests, with errors, aborts and peers that come late or never. A rank
// is a thread with a device of its own. What is queued in a stream runs when somebody asks for its event, in
// order, and a collective when all ranks have come to it. What CUDA or NCCL leave undefined is noted: work in
// a stream behind a launch that is in progress, memory that is not theirs or is changed under a copy, a
// communicator that is used after its end, memory freed behind what never ends.
//
// Threads: the functions any; the settings and counts while no rank runs, or under `mutex`.
#ifndef BFIO_TESTS_UNIT_WORKER_NCCL_FAKE_NCCL_H_
#define BFIO_TESTS_UNIT_WORKER_NCCL_FAKE_NCCL_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace bfio::testing {

struct FakeNccl {
  std::recursive_mutex mutex;

  int devices = 8;
  // Ranks hear of a peer that has aborted where they wait for it, as over sockets; else, as over NVLink, not.
  bool peers_hear = true;
  // How often a launch is still in progress when it is asked about.
  int launch_polls = 2;
  // By function: the result of the call after so many more. Of any rank.
  struct Fault {
    int calls = 0;
    int result = 0;
  };
  std::map<std::string, Fault> faults;
  // What ncclCommGetAsyncError says of the communicator of this device.
  std::map<int, int> async_errors;
  bool abort_hangs = false;

  // Of now.
  int communicators = 0, blocks = 0, streams = 0, events = 0;
  // Since the start.
  int unique_ids = 0, aborts = 0;
  std::vector<std::string> undefined;
};
// The process's one.
FakeNccl& Fake();
void ResetFake();

}  // namespace bfio::testing

#endif  // BFIO_TESTS_UNIT_WORKER_NCCL_FAKE_NCCL_H_
