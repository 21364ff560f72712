// A protobuf message of any type, so that the code of calls is compiled once for all messages. GRPC's calls
// are templates over their messages. A call of AnyMessage sends and receives the bytes of the message in it.
// Ownership: owns the message. Threads: one at a time.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "common/net/bounded_parse.h"

namespace bfio {

class AnyMessage {
 public:
  using Message = google::protobuf::Message;

  // Holds no message; can only be assigned to. What gRPC receives becomes one where it is too large or
  // ParseBounded refuses it.
  AnyMessage() = default;
  AnyMessage(std::unique_ptr<Message> message) : message_(std::move(message)) {}
  // An empty message of the type of `type`: gRPC parses what it receives, of at most `most_bytes`, as that
  // type.
  static AnyMessage Of(const Message& type, size_t most_bytes = std::numeric_limits<size_t>::max()) {
    AnyMessage message(std::unique_ptr<Message>(type.New()));
    message.most_bytes_ = most_bytes;
    return message;
  }

  explicit operator bool() const { return message_ != nullptr; }
  size_t most_bytes() const { return most_bytes_; }
  // REQUIRES: holds a message.
  Message& operator*() const { return *message_; }
  // REQUIRES: holds a message of type `Type`.
  template <typename Type>
  Type& As() const {
    return static_cast<Type&>(*message_);
  }

 private:
  std::unique_ptr<Message> message_;
  size_t most_bytes_ = std::numeric_limits<size_t>::max();
};

// The message to be parsed.
inline google::protobuf::Message& MessageIn(google::protobuf::Message& message) {
  return message;
}
inline google::protobuf::Message& MessageIn(AnyMessage& message) {
  return *message;
}

}  // namespace bfio

namespace grpc {

template <>
class SerializationTraits<bfio::AnyMessage, void> {
 public:
  static Status Serialize(const bfio::AnyMessage& message, ByteBuffer* bytes, bool* own_buffer) {
    *bytes = bfio::Serialized(*message);
    *own_buffer = true;
    return Status::OK;
  }
  static Status Deserialize(ByteBuffer* bytes, bfio::AnyMessage* message) {
    // Not an error: gRPC would report one as the end of the messages, with the call still open.
    // A part takes about 100 bytes of memory: all together no more than the bytes may.
    const size_t parts = std::min<size_t>(bfio::kMaxMessageParts, message->most_bytes() / 128);
    if (bytes->Length() > message->most_bytes() ||
        !bfio::ParseBounded(*bytes, **message, static_cast<int64_t>(parts)))
      *message = bfio::AnyMessage();
    return Status::OK;
  }
};

}  // namespace grpc
