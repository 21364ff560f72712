#include "common/net/grpc_log.h"

#include <google/protobuf/stubs/logging.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/spdlog.h"
#include "common/telemetry/line_limiter.h"
#include "grpc/support/log.h"

namespace bfio {
namespace {

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed."
constexpr absl::string_view kHandshakeFailed = "Handshake failed with fatal error ";

std::atomic<uint64_t> failed_handshakes{0};

void TakeLine(gpr_log_func_args* args) {
  // Never destroyed: gRPC's threads may log until the process ends.
  static RefusalLog& refusals = *new RefusalLog;
  const absl::string_view message = args->message;
  if (const std::optional<std::string> reason = TlsRefusal(message)) {
    failed_handshakes.fetch_add(1, std::memory_order_relaxed);
    refusals.Add(absl::StrCat("TLS handshake: ", *reason), "");
  } else if (IsUnusableCertificate(message)) {
    refusals.Add("all new TLS connections of a port, whose certificate files cannot be used", message);
  } else {
    spdlog::debug("grpc: {}", args->message);
  }
}

}  // namespace

void InstallGrpcLog() {
  gpr_set_log_function(TakeLine);
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*, int,
                                     const std::string& message) { spdlog::debug("protobuf: {}", message); });
}

uint64_t FailedHandshakes() {
  return failed_handshakes.load(std::memory_order_relaxed);
}

std::optional<std::string> TlsRefusal(absl::string_view grpc_message) {
  if (!absl::ConsumePrefix(&grpc_message, kHandshakeFailed)) return std::nullopt;
  absl::ConsumeSuffix(&grpc_message, ".");
  const size_t routine = grpc_message.rfind(':');
  if (routine != absl::string_view::npos) grpc_message.remove_prefix(routine + 1);
  absl::ConsumePrefix(&grpc_message, " ");
  return std::string(grpc_message);
}

bool IsUnusableCertificate(absl::string_view grpc_message) {
  return absl::StartsWith(grpc_message, "Handshaker factory creation failed") ||
         absl::StartsWith(grpc_message, "Reading file ") ||
         absl::StartsWith(grpc_message, "Could not load") ||
         absl::StartsWith(grpc_message, "Invalid cert chain") ||
         absl::StartsWith(grpc_message, "Invalid private key");
}

}  // namespace bfio
