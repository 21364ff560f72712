// Protobuf messages from and to the bytes of gRPC. Those of peers are parsed within a bound: a part (a
// message in a message, an element of repeated texts, a field that is not declared, or not with this wire
// type) takes 2 bytes on the wire and 50 to 100 in memory, so that 16 MiB of them would take 1 GB. So a
// message has a bounded number of parts, which are counted before it is parsed. Threads: pure functions.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

namespace bfio {

// More than any message of our protocols has: lists are as long as a worker's slots.
inline constexpr int64_t kMaxMessageParts = 1 << 18;

// False: the bytes are no message of this type, or have more than `most_parts`. The bytes are used up.
bool ParseBounded(grpc::ByteBuffer& bytes, google::protobuf::Message& message,
                  int64_t most_parts = kMaxMessageParts);

// In one piece: gRPC's own serialisation writes a stream of pieces, which costs more for small messages.
grpc::ByteBuffer Serialized(const google::protobuf::Message& message);

}  // namespace bfio
