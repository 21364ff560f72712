#include "common/net/status.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/peer_text.h"
#include "google/rpc/error_details.pb.h"

namespace bfio {
namespace {

constexpr absl::string_view kTypePrefix = "type.googleapis.com/";
constexpr absl::string_view kRetryInfoUrl = "type.googleapis.com/google.rpc.RetryInfo";
// Of a peer's message, and of its details together. Percent-encoded and repeated in the details it fits the 8
// KiB of headers that gRPC's clients accept, so that the error can be passed on.
constexpr size_t kMostMessageBytes = 1024;
constexpr int kLastCode = static_cast<int>(grpc::StatusCode::UNAUTHENTICATED);

std::string RetryInfoOf(absl::Duration delay) {
  google::rpc::RetryInfo info;
  const int64_t seconds = absl::IDivDuration(delay, absl::Seconds(1), &delay);
  info.mutable_retry_delay()->set_seconds(seconds);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  return info.SerializeAsString();
}

// Absent when it is negative or does not parse.
std::optional<absl::Duration> DelayOf(const std::string& retry_info) {
  google::rpc::RetryInfo info;
  if (!info.ParseFromString(retry_info)) return std::nullopt;
  const absl::Duration delay =
      absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
  if (delay < absl::ZeroDuration()) return std::nullopt;
  return delay;
}

void AddDetail(absl::string_view url, std::string value, google::rpc::Status& details) {
  google::protobuf::Any& any = *details.add_details();
  any.set_type_url(std::string(url));
  any.set_value(std::move(value));
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (absl::StartsWith(url, kTypePrefix)) AddDetail(url, std::string(value), details);
  });
  if (const auto delay = GetRetryDelay(status)) AddDetail(kRetryInfoUrl, RetryInfoOf(*delay), details);
  const auto code = static_cast<grpc::StatusCode>(static_cast<int>(status.code()));
  const std::string message(status.message());
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(static_cast<int>(code));
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  absl::Status out(
      code < 0 || code > kLastCode ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(code),
      PeerText(status.error_message(), kMostMessageBytes));
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details()) &&
      status.error_details().size() <= status.error_message().size() + kMostMessageBytes) {
    for (const google::protobuf::Any& any : details.details()) {
      if (any.type_url() == kRetryInfoUrl) {
        if (const auto delay = DelayOf(any.value())) SetRetryDelay(out, *delay);
      } else if (absl::StartsWith(any.type_url(), kTypePrefix)) {
        out.SetPayload(any.type_url(), absl::Cord(any.value()));
      }
    }
  }
  return out;
}

std::optional<absl::Duration> GetRetryDelay(const grpc::Status& status) {
  return GetRetryDelay(FromGrpcStatus(status));
}

std::string StatusCodeName(grpc::StatusCode code) {
  // The numbers are the same; absl has the names in capitals.
  const int number = static_cast<int>(code);
  if (number < 0 || number > kLastCode) return "UNKNOWN";
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(number));
}

}  // namespace bfio
