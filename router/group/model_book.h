// The models of a router's groups by number, and which of them requests may still wait for.
//
// Purpose: requests and the scheduler know a model by a number. A request that has begun goes on with its
// model alone; when no group has served that for some time, it ends. Numbers are never used twice. Bounded:
// models are named by workers. Pure. Threads: one.
#ifndef BFIO_ROUTER_GROUP_MODEL_BOOK_H_
#define BFIO_ROUTER_GROUP_MODEL_BOOK_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace bfio::router {

class ModelBook {
 public:
  // Beyond so many those are forgotten, and gone, that are not served.
  static constexpr size_t kMaxModels = 1024;

  // Above 0.
  uint32_t NumberOf(const std::string& model);
  // A request waits for that model, which an earlier router knew: it has until Expire to be served. False: it
  // was known or expected before.
  bool Expect(const std::string& model, absl::Time now);

  // The models that are served from now on, in any order.
  void SetServed(absl::Span<const uint32_t> served, absl::Time now);
  // Those that have been served, or expected, and are not for `patience`, are gone until they are served.
  void Expire(absl::Duration patience, absl::Time now);
  // When Expire has something to do; infinite: never.
  absl::Time NextExpiry(absl::Duration patience) const;

  // Those that are not gone: names by number.
  const std::map<uint32_t, std::string>& known() const { return known_; }

 private:
  struct Model {
    uint32_t number = 0;
    bool served = false;
    bool gone = false;
    // Has been served before, or is expected; is not served now, and is not gone: since when.
    absl::Time unserved_since = absl::InfiniteFuture();
  };

  void ListKnown();

  std::map<std::string, Model> models_;
  uint32_t last_ = 0;
  std::map<uint32_t, std::string> known_;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_GROUP_MODEL_BOOK_H_
