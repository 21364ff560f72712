#include "router/engine_link/kv_connector.h"

#include "common/json/json_reader.h"

namespace bfio::router {
namespace {

class AnsweredConnector : public KvConnector {
 public:
  std::string ToCompute(const KvSource&) const override {
    return R"({"do_remote_decode":true,"do_remote_prefill":false})";
  }
  std::string ToDecode(const KvSource&, std::string answer) const override {
    return ReadJsonObject(answer, "").ok() ? std::move(answer) : "";
  }
};

class Nixl final : public AnsweredConnector {
 public:
  // Without this field a request hangs in vLLM 0.32, and ends the engine when its caller gives up.
  std::string ToDecode(const KvSource&, std::string answer) const override {
    const auto fields = ReadJsonObject(answer, "", {}, {"remote_request_id"});
    const bool named = fields.ok() && fields->contains("remote_request_id");
    return named && fields->at("remote_request_id").is_string() ? std::move(answer) : "";
  }
};

// The engine that computes answers nothing: both calls have a transfer's id.
class Mooncake final : public KvConnector {
 public:
  std::string ToCompute(const KvSource& source) const override {
    return JsonText(nlohmann::json{
        {"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", source.transfer}});
  }
  std::string ToDecode(const KvSource& source, std::string) const override {
    if (source.engine.empty()) return "";
    return JsonText(nlohmann::json{{"do_remote_decode", false},
                                   {"do_remote_prefill", true},
                                   {"transfer_id", source.transfer},
                                   {"remote_engine_id", source.engine},
                                   {"remote_bootstrap_addr", "http://" + source.bootstrap}});
  }
  bool keeps_at_limit_only() const override { return true; }
};

}  // namespace

const KvConnector& KvConnectorOf(absl::string_view name) {
  static const auto& nixl = *new Nixl;
  static const auto& mooncake = *new Mooncake;
  static const auto& answered = *new AnsweredConnector;
  if (name == "NixlConnector" || name == "NixlPullConnector") return nixl;
  if (name == "MooncakeConnector") return mooncake;
  return answered;
}

}  // namespace bfio::router
