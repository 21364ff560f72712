#include "router/engine_link/kv_connector.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"
#include "router/requests/kv_transfer.h"

namespace bfio::router {
namespace {

class AnsweredConnector : public KvConnector {
 public:
  std::string ToCompute(const KvSource&) const override {
    return R"({"do_remote_decode":true,"do_remote_prefill":false})";
  }
  absl::StatusOr<RequestHandOff> ToDecode(const KvSource& source, std::string answer) const final {
    RequestHandOff hand_off;
    if (!answer.empty()) BFIO_RETURN_IF_ERROR(Check(source, answer, hand_off));
    hand_off.parameters = std::move(answer);
    return hand_off;
  }

 private:
  virtual absl::Status Check(const KvSource&, absl::string_view answer, RequestHandOff&) const {
    return ReadJsonObject(answer, "", {.bytes = 8 << 20}, {"do_remote_prefill"}).status();
  }
};

class Nixl final : public AnsweredConnector {
  bool frees_refused() const override { return true; }
  absl::Status Check(const KvSource& source, absl::string_view answer, RequestHandOff& to) const override {
    BFIO_ASSIGN_OR_RETURN(KvTransfer transfer,
                          ReadKvTransfer(answer, source.most_blocks, source.least_blocks));
    if (!transfer.fetches) return absl::InvalidArgumentError("do_remote_prefill is not set");
    // A rank has the server's name, and may have its number.
    const auto server = [](absl::string_view name) { return name.substr(0, name.rfind("_dp")); };
    if (!source.engine.empty() && server(transfer.engine) != server(source.engine)) {
      return absl::InvalidArgumentError(absl::StrCat("remote_engine_id is ", transfer.engine,
                                                     ", and the server's is ", server(source.engine)));
    }
    to.engine = std::move(transfer.engine);
    to.source = std::move(transfer.source);
    return absl::OkStatus();
  }
};

// The engine that computes answers nothing: both calls have a transfer's id.
class Mooncake final : public KvConnector {
 public:
  std::string ToCompute(const KvSource& source) const override {
    return JsonText(nlohmann::json{
        {"do_remote_decode", true}, {"do_remote_prefill", false}, {"transfer_id", source.transfer}});
  }
  absl::StatusOr<RequestHandOff> ToDecode(const KvSource& source, std::string) const override {
    if (source.engine.empty()) return RequestHandOff();
    return RequestHandOff{
        JsonText(nlohmann::json{{"do_remote_decode", false},
                                {"do_remote_prefill", true},
                                {"transfer_id", source.transfer},
                                {"remote_engine_id", source.engine},
                                {"remote_bootstrap_addr", "http://" + source.bootstrap.ToString()}})};
  }
  bool keeps_at_limit_only() const override { return true; }
};

// SGLang: both calls name a room of the bootstrap server, in which the ranks meet.
class Rooms final : public KvConnector {
 public:
  std::string ToCompute(const KvSource& source) const override { return JsonText(RoomOf(source)); }
  absl::StatusOr<RequestHandOff> ToDecode(const KvSource& source, std::string) const override {
    nlohmann::json room = RoomOf(source);
    if (source.rank) room["disagg_prefill_dp_rank"] = *source.rank;
    return RequestHandOff{JsonText(room)};
  }
  bool in_parallel() const override { return true; }
  bool computes_none() const override { return true; }
  std::vector<std::pair<std::string, std::string>> InBody(const std::string& parameters) const override {
    std::vector<std::pair<std::string, std::string>> members;
    const nlohmann::json fields = ReadJsonObject(parameters, "").value_or(nlohmann::json());
    for (const auto& [name, value] : fields.items()) members.emplace_back(name, JsonText(value));
    return members;
  }

 private:
  static nlohmann::json RoomOf(const KvSource& source) {
    return {{"bootstrap_host", source.bootstrap.host},
            {"bootstrap_port", source.bootstrap.port},
            {"bootstrap_room", source.room}};
  }
};

// llm-d's sidecar of the server that decodes.
class Sidecar final : public KvConnector {
 public:
  std::string ToCompute(const KvSource&) const override { return {}; }
  absl::StatusOr<RequestHandOff> ToDecode(const KvSource& source, std::string) const override {
    return RequestHandOff{source.server.ToString()};
  }
  bool in_parallel() const override { return true; }
  bool by_header() const override { return true; }
};

}  // namespace

const KvConnector& KvConnectorOf(absl::string_view name) {
  static const auto& nixl = *new Nixl;
  static const auto& mooncake = *new Mooncake;
  static const auto& rooms = *new Rooms;
  static const auto& sidecar = *new Sidecar;
  static const auto& answered = *new AnsweredConnector;
  if (name == "NixlConnector" || name == "NixlPullConnector") return nixl;
  if (name == "MooncakeConnector") return mooncake;
  if (name == "llm-d") return sidecar;
  if (absl::StartsWith(name, "sglang")) return rooms;
  return answered;
}

absl::StatusOr<HandOffPtr> HandOffFrom(const KvSource& source, std::string answer) {
  auto hand_off = KvConnectorOf(source.connector).ToDecode(source, std::move(answer));
  if (hand_off.ok()) return std::make_shared<const RequestHandOff>(*std::move(hand_off));
  return WrongHandOff(absl::UnavailableError(
      absl::StrCat("its hand-off of a prompt cannot be right: ", hand_off.status().message())));
}

}  // namespace bfio::router
