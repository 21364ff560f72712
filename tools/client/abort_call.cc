#include "tools/client/abort_call.h"

#include "absl/time/clock.h"
#include "common/net/tsan_edge.h"

namespace bfio::client {
namespace {

class AbortCall final : public grpc::ClientUnaryReactor {
 public:
  AbortCall(Link& link, const v1::AbortRequest& request, const Metadata& metadata)
      : use_(link), request_(request) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + kAbortTimeout));
    for (const auto& [name, value] : metadata) context_.AddMetadata(name, value);
  }

  void Start(v1::Inference::Stub& stub) {
    stub.async()->Abort(&context_, &request_, &response_, this);
    GrpcHandOver(this);
    StartCall();
  }

 private:
  void OnDone(const grpc::Status&) override {
    GrpcTakeOver(this);
    delete this;
  }

  const Link::Use use_;  // released last, because members are destroyed in reverse order
  grpc::ClientContext context_;
  const v1::AbortRequest request_;
  v1::AbortResponse response_;
};

}  // namespace

void StartAbort(Link& link, const v1::AbortRequest& request, const Metadata& metadata) {
  (new AbortCall(link, request, metadata))->Start(link.stub());
}

}  // namespace bfio::client
