#include "chains/worker/pass_service.h"

#include "absl/strings/str_cat.h"
#include "chains/worker/convert_batch.h"
#include "common/net/status.h"
#include "common/net/tsan_edge.h"

namespace bfio::worker {

// One incoming stream. Owned by itself until OnDone, and shared with its gate.
class PassService::Reader final : public grpc::ServerBidiReactor<v1::PassMessage, v1::PassReply> {
 public:
  static std::shared_ptr<Reader> Create(PassService* service) {
    std::shared_ptr<Reader> reader(new Reader(service));
    reader->self_ = reader;
    GrpcHandOver(reader.get());
    reader->StartRead(&reader->message_);
    return reader;
  }

  void End(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    GrpcHandOver(this);
    Finish(ToGrpcStatus(status));
  }

  void OnReadDone(bool ok) override {
    const GrpcReaction reaction(this);
    absl::Status status = ok ? TakeMessage() : Lost();
    if (!ok || !status.ok()) return End(status);
    MutexLock lock(&mutex_);
    if (finished_) return;
    GrpcHandOver(this);
    StartRead(&message_);
  }

  void OnDone() override {
    GrpcTakeOver(this);
    const std::shared_ptr<Reader> self = std::move(self_);
  }

 private:
  explicit Reader(PassService* service) : service_(service) {}

  absl::Status TakeMessage() {
    if (gate_ == nullptr) return Open();
    if (!message_.has_activations())
      return absl::InvalidArgumentError("a stream may send only activations after open");
    auto batch = FromProto(message_.activations());
    MutexLock lock(&gate_->mutex);
    if (gate_->inlet == nullptr) return absl::UnavailableError("the chain has ended");
    if (batch.ok()) return gate_->inlet->Take(*std::move(batch));
    gate_->inlet->OnLost(batch.status());
    return batch.status();
  }

  absl::Status Open() {
    if (!message_.has_open()) return absl::InvalidArgumentError("the first message of a stream must be open");
    const v1::PassOpen& open = message_.open();
    std::shared_ptr<Gate> gate = service_->Find(open.chain());
    if (gate == nullptr || gate->stage != open.stage()) {
      return absl::NotFoundError(
          absl::StrCat("stage ", open.stage(), " of chain ", open.chain(), " is not on this server"));
    }
    MutexLock lock(&gate->mutex);
    if (gate->inlet == nullptr) return absl::UnavailableError("the chain has ended");
    if (gate->reader != nullptr) return absl::AlreadyExistsError("another stream already feeds this stage");
    gate->reader = self_;
    gate_ = std::move(gate);
    return absl::OkStatus();
  }

  absl::Status Lost() {
    if (gate_ != nullptr) {
      MutexLock lock(&gate_->mutex);
      if (gate_->inlet != nullptr)
        gate_->inlet->OnLost(absl::UnavailableError("the previous server of the chain disconnected"));
    }
    return absl::OkStatus();
  }

  PassService* const service_;
  std::shared_ptr<Reader> self_;
  v1::PassMessage message_;
  // Used only by gRPC's callbacks.
  std::shared_ptr<Gate> gate_;
  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

void PassService::Register(uint64_t chain, uint32_t stage, Inlet* inlet) {
  MutexLock lock(&mutex_);
  gates_[chain] = std::make_shared<Gate>(stage, inlet);
}

void PassService::Unregister(uint64_t chain) {
  std::shared_ptr<Gate> gate;
  {
    MutexLock lock(&mutex_);
    const auto found = gates_.find(chain);
    if (found == gates_.end()) return;
    gate = std::move(found->second);
    gates_.erase(found);
  }
  std::shared_ptr<Reader> reader;
  {
    MutexLock lock(&gate->mutex);
    gate->inlet = nullptr;
    reader = std::move(gate->reader);
  }
  if (reader != nullptr) reader->End(absl::UnavailableError("the chain has ended"));
}

std::shared_ptr<PassService::Gate> PassService::Find(uint64_t chain) {
  MutexLock lock(&mutex_);
  const auto found = gates_.find(chain);
  return found == gates_.end() ? nullptr : found->second;
}

grpc::ServerBidiReactor<v1::PassMessage, v1::PassReply>* PassService::Pass(
    grpc::CallbackServerContext* context) {
  on_accepted_(context->peer());
  return Reader::Create(this).get();
}

grpc::ServerUnaryReactor* PassService::Ping(grpc::CallbackServerContext* context, const v1::PingRequest*,
                                            v1::PingReply*) {
  on_accepted_(context->peer());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace bfio::worker
