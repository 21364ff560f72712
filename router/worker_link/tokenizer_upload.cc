#include "router/worker_link/tokenizer_upload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/peer_text.h"
#include "common/net/status.h"

namespace bfio::router {

std::shared_ptr<TokenizerUpload> TokenizerUpload::Create(grpc::CallbackServerContext* context,
                                                         const TokenizerReceiver* receiver,
                                                         const AttachedWorkers* attached,
                                                         std::unique_ptr<CapacityShare> place) {
  std::shared_ptr<TokenizerUpload> call(new TokenizerUpload(context, receiver, attached, std::move(place)));
  call->Open(call);
  return call;
}

absl::Status TokenizerUpload::CheckFirst(const v1::TokenizerPart& part) {
  if (part.total_bytes() < 1 || part.total_bytes() > static_cast<uint64_t>(kMaxOfferedTokenizerBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer's files have ", part.total_bytes(),
                                                   " bytes; they must have 1 to ",
                                                   kMaxOfferedTokenizerBytes));
  }
  total_bytes_ = part.total_bytes();
  directory_ = PeerText(part.directory());
  return absl::OkStatus();
}

absl::Status TokenizerUpload::Add(v1::TokenizerPart& part) {
  bytes_ += part.data().size();
  if (bytes_ > total_bytes_)
    return absl::InvalidArgumentError("the tokenizer's files are larger than total_bytes");
  if (part.file().empty()) return absl::OkStatus();
  if (files_.empty() || files_.back().first != part.file()) {
    const auto same = [&](const auto& file) { return file.first == part.file(); };
    const bool known = std::any_of(files_.begin(), files_.end(), same);
    if (known || files_.size() == kMostFiles || part.file().find('/') != std::string::npos ||
        part.file().size() > 256 || !IsTokenizerFile(part.file())) {
      return absl::InvalidArgumentError(absl::StrCat(
          PeerText(part.file()), " is not a tokenizer file, was sent before, or is one file too many"));
    }
    files_.emplace_back(part.file(), "");
  }
  files_.back().second.append(part.data());
  return absl::OkStatus();
}

void TokenizerUpload::End(const absl::Status& status) {
  files_.clear();
  {
    MutexLock lock(&mutex_);
    received_ = status.ok();
    // Before the peer receives the result, so that its next offer is admitted.
    place_ = nullptr;
  }
  Close(ToGrpcStatus(status));
}

void TokenizerUpload::OnMessage(v1::TokenizerPart part) {
  absl::Status status;
  if (const bool first = !model_; first) {
    model_ = attached_->ModelOf(part.worker_id(), part.worker_instance());
    if (!model_) return End(absl::FailedPreconditionError("the worker of this tokenizer is not attached"));
    status = CheckFirst(part);
  }
  if (!receiver_->wanted(*model_)) return End(absl::OkStatus());
  if (status.ok()) status = Add(part);
  if (!status.ok()) return End(status);
  if (bytes_ == total_bytes_) {
    return receiver_->take(*model_, std::move(directory_), std::move(files_),
                           [call = shared_from_this()](const absl::Status& taken) { call->End(taken); });
  }
  MutexLock lock(&mutex_);
  if (!ended()) Read();
}

bool TokenizerUpload::Next(v1::TokenizerReceipt& /*receipt*/) {
  return std::exchange(received_, false);
}

}  // namespace bfio::router
