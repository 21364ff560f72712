// One Generate stream of gRPC's, read message by message.
//
// Purpose: turns gRPC's reactions into a call that waits. The next message is asked for when the one before
// was taken, so a slow caller holds at most one. Ownership: gRPC's while the RPC lives, and the caller's.
// Threads: Take and Abandon on one; Cancel on any; OnX are gRPC's.
#ifndef BFIO_TOOLS_CLIENT_ATTEMPT_H_
#define BFIO_TOOLS_CLIENT_ATTEMPT_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "bfio/v1/inference.grpc.pb.h"
#include "common/base/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "tools/client/link.h"
#include "tools/client/metadata.h"

namespace bfio::client {

class Attempt final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  // `deadline` by the wall clock, as gRPC wants it.
  static std::shared_ptr<Attempt> Start(Link& link, const v1::GenerateRequest& request, absl::Time deadline,
                                        const Metadata& metadata);

  // A message, how the RPC ended, or nothing within `patience`.
  std::variant<std::monostate, v1::GenerateResponse, grpc::Status> Take(absl::Duration patience);

  // The RPC then ends soon, whether or not anybody still takes its messages.
  void Cancel() { context_.TryCancel(); }
  // Nobody takes any more: cancels, and lets go.
  void Abandon();

 private:
  Attempt(Link& link, v1::GenerateRequest request) : link_(link), request_(std::move(request)) {}

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return full_ || status_.has_value(); }

  Link& link_;
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  // gRPC's while a read is under way, else the taker's.
  v1::GenerateResponse response_;

  Mutex mutex_;
  // response_ waits to be taken. The RPC does not end meanwhile: it is held, so that a read may be started
  // outside reactions.
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Attempt> self_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_ATTEMPT_H_
