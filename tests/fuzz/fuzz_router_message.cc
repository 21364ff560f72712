// Messages that the router sends to a worker, as read from the wire.
#include "bfio/v1/worker.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/fuzz.h"
#include "worker/link/convert.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  bfio::v1::RouterMessage message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto in = bfio::worker::FromProto(message);
  if (!in.has_value()) return 0;
  if (const auto* plan = std::get_if<bfio::worker::Plan>(&*in)) {
    bfio::fuzz::Check(static_cast<int>(plan->assignments.size()) == message.plan().assignments_size(),
                      "every assignment is passed on");
  }
  return 0;
}
