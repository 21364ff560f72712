#include "chains/worker/pass_outlet.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bfio/v1/pipeline.grpc.pb.h"
#include "chains/worker/convert_batch.h"
#include "common/base/mutex.h"
#include "common/net/channel.h"
#include "common/net/client_reactor.h"
#include "common/net/status.h"
#include "common/net/tsan_edge.h"
#include "grpcpp/grpcpp.h"

namespace bfio::worker {

class PassOutlet::Call final : public ClientReactor<grpc::ClientBidiReactor<v1::PassMessage, v1::PassReply>> {
 public:
  Call(const PassTarget& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
       std::function<void(const absl::Status&)> on_lost)
      : on_lost_(std::move(on_lost)), channel_(NewChannel(target.address, 0, credentials)) {}

  ~Call() override {
    bool opened = false;
    {
      MutexLock lock(&mutex_);
      closing_ = true;
      opened = opened_;
      Release();
    }
    if (!opened) return;
    context_.TryCancel();
    MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

  void Open(const PassTarget& target) {
    {
      MutexLock lock(&mutex_);
      // A context may be used for one call only; a second one would abort the process.
      if (std::exchange(opened_, true)) return;
      writing_ = holding_ = true;
    }
    v1::PassOpen* open = out_.mutable_open();
    open->set_chain(target.chain);
    open->set_stage(target.stage);
    stub_ = v1::Pipeline::NewStub(channel_);
    stub_->async()->Pass(&context_, this);
    // Writes are started outside of callbacks, which gRPC requires to be announced by a hold.
    AddHold();
    GrpcHandOver(this);
    StartRead(&in_);
    StartWrite(&out_);
    StartCall();
  }

  absl::Status Send(MicroBatch batch) {
    MutexLock lock(&mutex_);
    if (lost_) return absl::UnavailableError("the next server of the chain disconnected");
    if (waiting_.size() >= static_cast<size_t>(kMaxInFlight)) {
      return absl::ResourceExhaustedError("the next server of the chain does not read its micro-batches");
    }
    waiting_.push_back(std::move(batch));
    WriteNext();
    return absl::OkStatus();
  }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    MutexLock lock(&mutex_);
    if (ok) {
      GrpcHandOver(this);
      return StartRead(&in_);
    }
    lost_ = true;
    Release();
  }

  void OnWriteDone(bool ok) override {
    const GrpcReaction reaction(this);
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) {
      WriteNext();
    } else {
      lost_ = true;
      Release();
    }
  }

  void OnDone(const grpc::Status& status) override {
    GrpcTakeOver(this);
    bool tell = false;
    {
      MutexLock lock(&mutex_);
      lost_ = true;
      tell = !closing_;
    }
    if (tell) {
      on_lost_(absl::UnavailableError(
          absl::StrCat("the next server of the chain disconnected: ", FromGrpcStatus(status).ToString())));
    }
    // Must be last: the owner may delete this from now on.
    MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!opened_ || writing_ || lost_ || closing_ || waiting_.empty()) return;
    ToProto(waiting_.front(), *out_.mutable_activations());
    waiting_.pop_front();
    writing_ = true;
    GrpcHandOver(this);
    StartWrite(&out_);
  }
  // Ends the hold: no more writes, so the call may end.
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!std::exchange(holding_, false)) return;
    GrpcHandOver(this);
    RemoveHold();
  }

  const std::function<void(const absl::Status&)> on_lost_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Pipeline::Stub> stub_;
  grpc::ClientContext context_;
  v1::PassMessage out_;
  v1::PassReply in_;
  Mutex mutex_;
  std::deque<MicroBatch> waiting_ ABSL_GUARDED_BY(mutex_);
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

PassOutlet::PassOutlet(PassTarget target, std::shared_ptr<grpc::ChannelCredentials> credentials,
                       std::function<void(const absl::Status&)> on_lost)
    : target_(std::move(target)), call_(std::make_unique<Call>(target_, credentials, std::move(on_lost))) {}

PassOutlet::~PassOutlet() = default;

void PassOutlet::Open() {
  call_->Open(target_);
}

absl::Status PassOutlet::Send(MicroBatch batch) {
  return call_->Send(std::move(batch));
}

}  // namespace bfio::worker
