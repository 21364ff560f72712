// Between the link's structs and protobuf. Pure.
#ifndef BFIO_WORKER_LINK_CONVERT_H_
#define BFIO_WORKER_LINK_CONVERT_H_

#include <optional>
#include <variant>

#include "bfio/v1/worker.pb.h"
#include "worker/link/messages.h"

namespace bfio::worker {

// Fills `out` (cleared first; its memory is reused).
void ToProto(const OutMessage& message, v1::WorkerMessage& out);

using InMessage = std::variant<Epoch, Plan, Shutdown, Notice>;

// Nothing when the message is of no known kind: a newer router's, to be ignored.
std::optional<InMessage> FromProto(const v1::RouterMessage& message);

}  // namespace bfio::worker

#endif  // BFIO_WORKER_LINK_CONVERT_H_
