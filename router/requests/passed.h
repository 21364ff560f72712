// Messages that pass the router unchanged: requests and answers of an engine's protocol, between two edges
// that implement it. One edge stores a message of its protocol here, and the other edge retrieves it; this
// works in both directions. The modules between them do not depend on the message's type. An edge that asks
// for the type of another protocol gets null. Ownership: shared, and never changed. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

namespace bfio::router {

class Passed {
 public:
  virtual ~Passed() = default;
  // Size of the message on the wire.
  int64_t bytes() const { return bytes_; }
  // Memory that it takes, in bytes; a small message may take a hundred times its size on the wire.
  int64_t memory() const { return memory_; }
  // What its sender may have of the router's memory holds it until this is released: when it is written.
  const std::shared_ptr<const void>& share() const { return share_; }
  // Whether tokens come through the router. Otherwise it only learns that the request has ended.
  virtual bool brings_tokens() const { return true; }

 protected:
  explicit Passed(int64_t bytes, int64_t memory = 0, std::shared_ptr<const void> share = nullptr)
      : bytes_(bytes), memory_(memory), share_(std::move(share)) {}

 private:
  const int64_t bytes_, memory_;
  const std::shared_ptr<const void> share_;
};
using PassedPtr = std::shared_ptr<const Passed>;

template <typename Message>
class PassedMessage final : public Passed {
 public:
  static PassedPtr Make(Message message, std::shared_ptr<const void> share = nullptr) {
    return std::make_shared<PassedMessage>(std::move(message), std::move(share));
  }
  // Null: the message has another type.
  static const Message* In(const Passed* passed) {
    const auto* const found = dynamic_cast<const PassedMessage*>(passed);
    return found == nullptr ? nullptr : &found->message_;
  }
  PassedMessage(Message message, std::shared_ptr<const void> share)
      : Passed(static_cast<int64_t>(message.ByteSizeLong()), static_cast<int64_t>(message.SpaceUsedLong()),
               std::move(share)),
        message_(std::move(message)) {}

 private:
  const Message message_;
};

// How a request passes.
struct Passing {
  // Its answers are the engine's messages.
  bool on = false;
  // The request as the client sent it; null where `on` is false, and where it was too large to be kept.
  PassedPtr message;
  // Another engine can continue exactly after the tokens that have arrived; or, because the client gets none
  // before the end, can start again.
  bool continues = false;
  bool starts_again = false;
  // The engine counts as many prompt tokens as the router; otherwise there may be images, or a text.
  bool exact_length = false;
  // Another engine computes its prompt; or none but the one that decodes may compute it.
  bool kv_from_elsewhere = false;
  bool no_hand_off = false;
};

}  // namespace bfio::router
