// Converts between the link's structs (messages.h) and protobuf. Pure.
#pragma once

#include <optional>
#include <variant>

#include "bfio/v1/worker.pb.h"
#include "worker/link/messages.h"

namespace bfio::worker {

// Fills `out` (cleared first; its memory is reused).
void ToProto(const OutMessage& message, v1::WorkerMessage& out);

using InMessage = std::variant<Epoch, Plan, Shutdown, Notice>;

// Absent for an unknown kind of message, which a newer router may send: ignore it.
std::optional<InMessage> FromProto(const v1::RouterMessage& message);

}  // namespace bfio::worker
