#include "router/frontend/gateway/tokenizer_stream.h"

#include <utility>

#include "common/net/server_call.h"
#include "engines/smg_common.pb.h"

namespace bfio::router::gateway {
namespace {

namespace common_pb = ::smg::grpc::common;

// The chunk size that engines use.
constexpr size_t kChunkBytes = 64 << 10;

class TokenizerCall final : public ServerCall<TokenizerCall, AnyMessage, AnyMessage> {
 public:
  static std::shared_ptr<TokenizerCall> Create(grpc::CallbackServerContext* context,
                                               std::shared_ptr<const ModelFiles> model) {
    std::shared_ptr<TokenizerCall> call(new TokenizerCall(context, std::move(model)));
    call->Open(call);
    return call;
  }

 private:
  TokenizerCall(grpc::CallbackServerContext* context, std::shared_ptr<const ModelFiles> model)
      : ServerCall(context, AnyMessage::Of(common_pb::GetTokenizerRequest::default_instance())),
        model_(std::move(model)) {}

  void OnMessage(AnyMessage) override {
    if (model_ == nullptr) {
      return Close({grpc::StatusCode::FAILED_PRECONDITION,
                    "the router has no tokenizer: --tokenizer is not set, and no worker has sent one; give "
                    "the gateway its own"});
    }
    MutexLock lock(&mutex_);
    begun_ = true;
    if (SetEnd(grpc::Status::OK)) Advance();
  }
  bool Next(AnyMessage& message) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!begun_ || sent_ == model_->archive.size()) return false;
    if (!message) message = AnyMessage::Of(common_pb::GetTokenizerChunk::default_instance());
    auto& chunk = message.As<common_pb::GetTokenizerChunk>();
    chunk.set_data(model_->archive.substr(sent_, kChunkBytes));
    sent_ += chunk.data().size();
    if (sent_ == model_->archive.size()) chunk.set_sha256(model_->archive_sha256);
    return true;
  }

  const std::shared_ptr<const ModelFiles> model_;
  // True: the request has been read and the model is available.
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

TokenizerStream* StreamTokenizer(grpc::CallbackServerContext* context, const absl::Status& allowed,
                                 FirstMessages* messages, std::shared_ptr<const ModelFiles> model) {
  const std::shared_ptr<TokenizerCall> call = TokenizerCall::Create(context, std::move(model));
  call->Begin(allowed, messages);
  return call.get();  // kept alive by itself until OnDone
}

}  // namespace bfio::router::gateway
