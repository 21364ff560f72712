// The models of a router's groups by number, and which of them requests may still wait for. Requests and the
// scheduler identify a model by a number. A request that has generated tokens continues only on its model; it
// ends when no group has served that model for some time. Numbers are never reused. Bounded, because workers
// name the models. Pure. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace bfio::router {

class ModelBook {
 public:
  // Beyond this bound, models that are not served are removed.
  static constexpr size_t kMaxModels = 1024;

  // The model's number, above 0; a new one for a new name.
  uint32_t NumberOf(const std::string& model);
  // A request waits for that model, which an earlier router served: the model is kept until Expire removes
  // it. False when the model was known or expected before.
  bool Expect(const std::string& model, absl::Time now);

  // Sets the models that are served from now on, in any order.
  void SetServed(absl::Span<const uint32_t> served, absl::Time now);
  // Removes the models that have been neither served nor expected for `patience`. A removed model becomes
  // known again when it is served.
  void Expire(absl::Duration patience, absl::Time now);
  // When Expire has something to do; infinite: never.
  absl::Time NextExpiry(absl::Duration patience) const;

  // The models that are not removed: names by number.
  const std::map<uint32_t, std::string>& known() const { return known_; }

 private:
  struct Model {
    uint32_t number = 0;
    bool served = false;
    bool gone = false;
    // Since when it is not served, for a model that was served or expected before and is not gone; infinite
    // otherwise.
    absl::Time unserved_since = absl::InfiniteFuture();
  };

  void ListKnown();

  std::map<std::string, Model> models_;
  uint32_t last_ = 0;
  std::map<uint32_t, std::string> known_;
};

}  // namespace bfio::router
