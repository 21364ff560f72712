// A request of which the router only chooses the rank: someone else, such as Envoy, sends it there and
// carries its tokens. The edge that is asked for a place makes one; the edge of the ranks calls it when the
// request has been placed. Ownership: shared (Passed). Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "router/requests/passed.h"

namespace bfio::router {

class PlacedRequest : public Passed {
 public:
  struct Place {
    // "IP:PORT" of the server.
    std::string server;
    // The rank of a server that has several.
    std::optional<int32_t> rank;
    // Members that its body gets, by name and value (JSON).
    std::vector<std::pair<std::string, std::string>> members = {};
    // HOST:PORT of the server that computes its prompt, for llm-d's sidecar; empty: none. Absent: there is no
    // sidecar.
    std::optional<std::string> prefill_server = {};
  };
  // The client's call, as a rank that computes its prompt for another gets it. No body: it is not kept, or
  // its client has left.
  struct Call {
    std::string path, authorization, body;
  };
  // Called once when the request no longer uses its place. OK: it has ended there. UNAVAILABLE: the server
  // could not be reached. ABORTED: it cannot be placed (again).
  using OnEnd = absl::AnyInvocable<void(absl::Status) &&>;

  virtual void SendTo(const Place& place, OnEnd on_end) const = 0;
  virtual Call ToPrefill() const = 0;
  bool brings_tokens() const final { return false; }

  // Of its prompt's text; 0: it has none.
  int64_t text_bytes() const { return text_bytes_; }

 protected:
  explicit PlacedRequest(int64_t bytes, int64_t text_bytes = 0) : Passed(bytes), text_bytes_(text_bytes) {}

 private:
  const int64_t text_bytes_;
};

}  // namespace bfio::router
