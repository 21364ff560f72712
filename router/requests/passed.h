// Messages that pass the router unchanged: requests and answers of an engine's protocol, between two edges
// that implement it.
//
// Purpose: the frontend's edge puts a message of its wire in, and the engines' edge takes it out, or the
// other way round; the modules between them do not depend on its type. An edge that reads another protocol's
// type gets null. Ownership: shared, and never changed. Threads: any.
#ifndef BFIO_ROUTER_REQUESTS_PASSED_H_
#define BFIO_ROUTER_REQUESTS_PASSED_H_

#include <cstdint>
#include <memory>
#include <utility>

namespace bfio::router {

class Passed {
 public:
  virtual ~Passed() = default;
  // Size of the message on the wire.
  int64_t bytes() const { return bytes_; }

 protected:
  explicit Passed(int64_t bytes) : bytes_(bytes) {}

 private:
  const int64_t bytes_;
};
using PassedPtr = std::shared_ptr<const Passed>;

template <typename Message>
class PassedMessage final : public Passed {
 public:
  static PassedPtr Make(Message message) { return std::make_shared<PassedMessage>(std::move(message)); }
  // Null: it is no such message.
  static const Message* In(const Passed* passed) {
    const auto* const found = dynamic_cast<const PassedMessage*>(passed);
    return found == nullptr ? nullptr : &found->message_;
  }
  explicit PassedMessage(Message message)
      : Passed(static_cast<int64_t>(message.ByteSizeLong())), message_(std::move(message)) {}

 private:
  const Message message_;
};

// How a request passes.
struct Passing {
  // Its answers are the engine's messages.
  bool on = false;
  // As it came; null where `on` is false, and where it was too large to be kept.
  PassedPtr message;
  // One message brings the whole output, at its end.
  bool whole = false;
  // Another engine can continue exactly after the tokens that have arrived.
  bool continues = false;
  // Another engine computes its prompt.
  bool kv_from_elsewhere = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_REQUESTS_PASSED_H_
