#include "tools/top/feed.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/channel.h"
#include "common/net/status.h"
#include "grpcpp/client_context.h"

namespace bfio::top {
namespace {

// Pause before a broken stream is opened again.
constexpr absl::Duration kPause = absl::Seconds(1);

// gRPC's message about a missing connection names neither the flag nor, if the address is a name, the
// address. The reason of a failed TLS handshake is kept.
absl::Status WithAddress(absl::Status status, const std::string& address) {
  const absl::string_view text = status.message();
  if (!absl::IsUnavailable(status) || !absl::StartsWith(text, "failed to connect to all addresses"))
    return status;
  constexpr absl::string_view kRefused = "Connection refused";
  return absl::UnavailableError(
      absl::StrCat("no router answers at ", address, " (--admin)",
                   absl::StrContains(text, kRefused) ? "" : absl::StrCat(": ", text)));
}

}  // namespace

Feed::Feed(const std::string& address, Login login)
    : address_(address),
      login_(std::move(login)),
      channel_(NewChannel(address, 0, login_.credentials)),
      stub_(v1::Admin::NewStub(channel_)),
      thread_([this] { Follow(); }) {}

Feed::~Feed() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    if (following_ != nullptr) following_->TryCancel();
  }
  thread_.join();
}

void Feed::Prepare(grpc::ClientContext& context) const {
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  login_.Present(context);
}

absl::StatusOr<v1::ClusterState> Feed::State() {
  grpc::ClientContext context;
  Prepare(context);
  v1::ClusterState state;
  const grpc::Status status = stub_->GetClusterState(&context, {}, &state);
  if (!status.ok()) return WithAddress(FromGrpcStatus(status), address_);
  return state;
}

absl::Status Feed::SetPolicy(const std::string& name) {
  grpc::ClientContext context;
  Prepare(context);
  v1::SetPolicyRequest request;
  request.mutable_policy()->set_name(name);
  v1::SetPolicyResponse response;
  return FromGrpcStatus(stub_->SetPolicy(&context, request, &response));
}

absl::Status Feed::Drain(const std::string& worker_id) {
  grpc::ClientContext context;
  Prepare(context);
  v1::DrainWorkerRequest request;
  request.set_worker_id(worker_id);
  v1::DrainWorkerResponse response;
  return FromGrpcStatus(stub_->DrainWorker(&context, request, &response));
}

absl::Status Feed::Undrain(const std::string& worker_id) {
  grpc::ClientContext context;
  Prepare(context);
  v1::UndrainWorkerRequest request;
  request.set_worker_id(worker_id);
  v1::UndrainWorkerResponse response;
  return FromGrpcStatus(stub_->UndrainWorker(&context, request, &response));
}

std::vector<v1::StepSummary> Feed::LastSteps() {
  MutexLock lock(&mutex_);
  std::vector<v1::StepSummary> steps;
  for (const auto& [group, step] : last_) steps.push_back(step);
  return steps;
}

void Feed::Follow() {
  for (;;) {
    grpc::ClientContext context;
    login_.Present(context);
    {
      MutexLock lock(&mutex_);
      if (stop_) return;
      following_ = &context;
    }
    v1::WatchStepsRequest request;
    request.set_every(kEvery);
    const auto reader = stub_->WatchSteps(&context, request);
    v1::StepSummary step;
    while (reader->Read(&step)) {
      MutexLock lock(&mutex_);
      last_[step.group()] = step;
    }
    // The status is ignored here: State reports why the router cannot be reached.
    (void)reader->Finish();
    MutexLock lock(&mutex_);
    following_ = nullptr;
    last_.clear();
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), kPause)) return;
  }
}

}  // namespace bfio::top
