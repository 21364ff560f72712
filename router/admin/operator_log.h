// Logs each change by an operator, with the operator's name.
//
// Purpose: the same log lines for the gRPC API and the live page. Threads: any.
#ifndef BFIO_ROUTER_ADMIN_OPERATOR_LOG_H_
#define BFIO_ROUTER_ADMIN_OPERATOR_LOG_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/peer_text.h"
#include "common/base/spdlog.h"
#include "router/admin/operator_handler.h"

namespace bfio::router {

// Wraps `done` so that the log line is written first. `act`: for example "drain worker"; `what`: the
// operator's input.
inline OperatorHandler::Done Logged(std::string who, const char* act, std::string what,
                                    OperatorHandler::Done done) {
  return [who = std::move(who), act, what = std::move(what),
          done = std::move(done)](absl::Status status) mutable {
    spdlog::info("operator {}: {} {}: {}", PeerText(who), act, PeerText(what),
                 status.ok() ? "done" : PeerText(status.message()));
    std::move(done)(std::move(status));
  };
}

}  // namespace bfio::router

#endif  // BFIO_ROUTER_ADMIN_OPERATOR_LOG_H_
