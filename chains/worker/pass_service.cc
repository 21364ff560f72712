#include "chains/worker/pass_service.h"

#include "absl/strings/str_cat.h"
#include "chains/worker/convert_batch.h"
#include "common/net/authenticator.h"
#include "common/net/server_call.h"
#include "common/net/status.h"

namespace bfio::worker {

// One incoming stream.
class PassService::Reader final : public ServerCall<Reader, v1::PassMessage, v1::PassReply> {
 public:
  static Reader* Begin(PassService* service, grpc::CallbackServerContext* context) {
    std::shared_ptr<Reader> reader(new Reader(service, context));
    reader->Open(reader);
    reader->ServerCall::Begin(PeerOf(*context), &service->messages_);
    return reader.get();
  }

 private:
  Reader(PassService* service, grpc::CallbackServerContext* context)
      : ServerCall(context), service_(service) {}

  void OnMessage(v1::PassMessage message) override {
    if (const absl::Status status = Take(message); !status.ok()) return Close(ToGrpcStatus(status));
    MutexLock lock(&mutex_);
    if (!ended()) Read();
  }
  void OnNoMessage() override {
    if (gate_ != nullptr) {
      MutexLock lock(&gate_->mutex);
      if (gate_->inlet != nullptr)
        gate_->inlet->OnLost(absl::UnavailableError("the previous server of the chain disconnected"));
    }
    Close(grpc::Status::OK);
  }
  bool Next(v1::PassReply&) override { return false; }

  absl::Status Take(const v1::PassMessage& message) {
    if (gate_ == nullptr) return OpenStage(message);
    if (!message.has_activations())
      return absl::InvalidArgumentError("a stream may send only activations after open");
    auto batch = FromProto(message.activations());
    MutexLock lock(&gate_->mutex);
    if (gate_->inlet == nullptr) return absl::UnavailableError("the chain has ended");
    if (batch.ok()) return gate_->inlet->Take(*std::move(batch));
    gate_->inlet->OnLost(batch.status());
    return batch.status();
  }

  absl::Status OpenStage(const v1::PassMessage& message) {
    if (!message.has_open()) return absl::InvalidArgumentError("the first message of a stream must be open");
    const v1::PassOpen& open = message.open();
    std::shared_ptr<Gate> gate = service_->Find(open.chain());
    if (gate == nullptr || gate->stage != open.stage()) {
      return absl::NotFoundError(
          absl::StrCat("stage ", open.stage(), " of chain ", open.chain(), " is not on this server"));
    }
    MutexLock lock(&gate->mutex);
    if (gate->inlet == nullptr) return absl::UnavailableError("the chain has ended");
    if (gate->reader != nullptr) return absl::AlreadyExistsError("another stream already feeds this stage");
    gate->reader = shared_from_this();
    gate_ = std::move(gate);
    return absl::OkStatus();
  }

  PassService* const service_;
  // Used only by gRPC's callbacks.
  std::shared_ptr<Gate> gate_;
};

PassService::PassService() {
  Add("/bfio.v1.Pipeline/Pass", [this](grpc::CallbackServerContext* context) {
    on_accepted_(context->peer());
    return Reader::Begin(this, context);
  });
}

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
  if (reader != nullptr) reader->Close(ToGrpcStatus(absl::UnavailableError("the chain has ended")));
}

std::shared_ptr<PassService::Gate> PassService::Find(uint64_t chain) {
  MutexLock lock(&mutex_);
  const auto found = gates_.find(chain);
  return found == gates_.end() ? nullptr : found->second;
}

}  // namespace bfio::worker
