#include "router/election/etcd_reply.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace bfio::router {
namespace {

using nlohmann::json;

// etcd's answers have at most 6 levels.
constexpr int kMaxDepth = 16;

// The JSON object in `text`, without levels below kMaxDepth; an empty object when there is none.
json Parse(absl::string_view text) {
  const auto shallow = [](int depth, json::parse_event_t, const json&) { return depth <= kMaxDepth; };
  json parsed = json::parse(text.begin(), text.end(), shallow, false);
  if (!parsed.is_object()) parsed = json::object();
  return parsed;
}

// The member; null when `object` is not an object or has no such member.
const json& Member(const json& object, const char* name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto at = object.find(name);
  return at == object.end() ? none : *at;
}

// The gateway writes 64-bit numbers as strings, and leaves out what is 0.
int64_t Number(const json& object, const char* name) {
  const json& value = Member(object, name);
  int64_t number = 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX) return value.get<int64_t>();
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) return number;
  return 0;
}

absl::StatusOr<EtcdOwner> OwnerOf(const json& range) {
  // An answer of etcd has this member, whether the key exists or not.
  if (!Member(range, "header").is_object()) return absl::UnavailableError("the answer is not from etcd");
  const json& found = Member(range, "kvs");
  if (!found.is_array() || found.empty()) return EtcdOwner();
  EtcdOwner owner;
  const json& value = Member(found[0], "value");
  owner.revision = Number(found[0], "create_revision");
  owner.lease = Number(found[0], "lease");
  if (!value.is_string() || !absl::Base64Unescape(value.get_ref<const std::string&>(), &owner.name) ||
      owner.name.empty() || owner.revision <= 0) {
    return absl::UnavailableError("etcd's answer does not name the key's owner");
  }
  return owner;
}

}  // namespace

absl::Status EtcdErrorIn(absl::string_view reply, int http) {
  const json object = Parse(reply);
  // {"error": text, "code": number}; since 3.6 {"code", "message"}; for streams {"error": {"grpc_code",
  // "message"}}.
  const json& inner = Member(object, "error");
  const json& error = inner.is_object() ? inner : object;
  const json& words = inner.is_string() ? inner : Member(error, "message");
  const std::string said = absl::StrCat(
      "etcd error: ", words.is_string() ? words.get_ref<const std::string&>() : absl::StrCat("HTTP ", http));
  // gRPC's status codes, which absl shares.
  const int64_t code = std::max(Number(error, "code"), Number(error, "grpc_code"));
  if (code < 1 || code > 16) return absl::UnavailableError(said);
  return absl::Status(static_cast<absl::StatusCode>(code), said);
}

absl::StatusOr<int64_t> LeaseIn(absl::string_view reply) {
  const int64_t id = Number(Parse(reply), "ID");
  if (id == 0) return absl::UnavailableError("etcd's answer has no lease");
  return id;
}

absl::StatusOr<bool> RenewedIn(absl::string_view reply, int64_t lease) {
  const json said = Parse(reply);
  const json& result = Member(said, "result");
  if (Number(result, "ID") != lease || lease == 0) {
    if (absl::Status error = EtcdErrorIn(reply, 200); !absl::IsNotFound(error)) return error;
    return false;
  }
  return Number(result, "TTL") > 0;
}

absl::StatusOr<EtcdOwner> OwnerIn(absl::string_view reply) {
  return OwnerOf(Parse(reply));
}

absl::StatusOr<EtcdClaim> ClaimIn(absl::string_view reply, const std::string& name) {
  const json said = Parse(reply);
  if (Member(said, "succeeded") == true) {
    const int64_t revision = Number(Member(said, "header"), "revision");
    if (revision <= 0) return absl::UnavailableError("etcd's answer has no revision");
    return EtcdClaim{true, {name, revision}};
  }
  const json& responses = Member(said, "responses");
  if (!responses.is_array() || responses.empty())
    return absl::UnavailableError("etcd's answer does not name the key's owner");
  BFIO_ASSIGN_OR_RETURN(EtcdOwner owner, OwnerOf(Member(responses[0], "response_range")));
  if (owner.name.empty()) return absl::UnavailableError("the key was released in the meantime");
  return EtcdClaim{false, std::move(owner)};
}

}  // namespace bfio::router
