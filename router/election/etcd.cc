#include "router/election/etcd.h"

// The distribution's libcpp-httplib is compiled with this macro, on which its classes depend.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/address.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/json/json_reader.h"

namespace bfio::router {
namespace {

using nlohmann::json;

// Upper limit of a reply; etcd's answers have a few hundred bytes.
constexpr size_t kMaxReply = 1 << 16;
constexpr size_t kMostNameBytes = 1024;

// The JSON object in `text`; an empty one when there is none.
json Parse(absl::string_view text) {
  absl::StatusOr<json> parsed = ReadJsonObject(text, "", {.bytes = kMaxReply});
  return parsed.ok() ? *std::move(parsed) : json::object();
}

// The member; null when `object` is not an object or has no such member.
const json& FieldOf(const json& object, const char* name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto at = object.find(name);
  return at == object.end() ? none : *at;
}

// The gateway writes 64-bit numbers as strings, and leaves out what is 0.
int64_t Number(const json& object, const char* name) {
  const json& value = FieldOf(object, name);
  int64_t number = 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() <= INT64_MAX) return value.get<int64_t>();
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) return number;
  return 0;
}

absl::StatusOr<EtcdOwner> OwnerOf(const json& range) {
  // An answer of etcd has this member, whether the key exists or not.
  if (!FieldOf(range, "header").is_object()) return absl::UnavailableError("the answer is not from etcd");
  const json& found = FieldOf(range, "kvs");
  if (!found.is_array() || found.empty()) return EtcdOwner();
  EtcdOwner owner;
  const json& value = FieldOf(found[0], "value");
  owner.revision = Number(found[0], "create_revision");
  owner.lease = Number(found[0], "lease");
  if (!value.is_string() || !absl::Base64Unescape(value.get_ref<const std::string&>(), &owner.name) ||
      owner.name.empty() || owner.name.size() > kMostNameBytes || owner.revision <= 0 ||
      !std::all_of(owner.name.begin(), owner.name.end(), absl::ascii_isprint)) {
    return absl::UnavailableError("etcd's answer does not name the key's owner");
  }
  return owner;
}

}  // namespace

class Etcd::Connection {
 public:
  explicit Connection(const std::string& endpoint, const EtcdOptions& options)
      : timeout_(options.timeout), client_(endpoint, options.tls.cert, options.tls.key) {
    const auto microseconds = absl::ToInt64Microseconds(options.timeout);
    const time_t seconds = microseconds / 1'000'000, rest = microseconds % 1'000'000;
    client_.set_connection_timeout(seconds, rest);
    client_.set_read_timeout(seconds, rest);
    client_.set_write_timeout(seconds, rest);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    if (!options.tls.ca.empty()) client_.set_ca_cert_path(options.tls.ca.c_str());
    client_.enable_server_certificate_verification(true);
  }
  bool valid() const { return client_.is_valid(); }
  httplib::Result Post(const std::string& path, const std::string& body) {
    httplib::Request request;
    request.method = "POST";
    request.path = path;
    request.body = body;
    request.set_header("Content-Type", "application/json");
    std::string* const text = &reply_;
    text->clear();
    request.content_receiver = [text](const char* data, size_t size, uint64_t, uint64_t) {
      if (text->size() + size > kMaxReply) return false;
      text->append(data, size);
      return true;
    };
    // httplib's timeouts are those of each wait: an answer that comes byte by byte would never end.
    bool ended = false;
    Mutex mutex;
    std::thread watch([&] {
      MutexLock lock(&mutex);
      if (!mutex.AwaitWithTimeout(absl::Condition(&ended), timeout_)) client_.stop();
    });
    httplib::Result result = client_.send(request);
    {
      MutexLock lock(&mutex);
      ended = true;
    }
    watch.join();
    return result;
  }
  const std::string& reply() const { return reply_; }

 private:
  const absl::Duration timeout_;
  httplib::Client client_;
  std::string reply_;
};

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::Create(EtcdOptions options) {
  if (options.endpoints.empty()) return absl::InvalidArgumentError("no etcd endpoint is given");
  bool encrypted = false;
  for (std::string& endpoint : options.endpoints) {
    absl::string_view address = endpoint;
    const bool tls = absl::ConsumePrefix(&address, "https://");
    if (!tls && !absl::ConsumePrefix(&address, "http://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", endpoint, "': an etcd endpoint must be http://HOST:PORT or https://HOST:PORT"));
    }
    absl::ConsumeSuffix(&address, "/");
    BFIO_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
    endpoint = absl::StrCat(tls ? "https://" : "http://", parsed.ToString());
    encrypted = encrypted || tls;
  }
  if (options.tls.enabled() && !encrypted)
    return absl::InvalidArgumentError("--election_tls is set, but no etcd endpoint is https://");
  if (encrypted) {
    BFIO_RETURN_IF_ERROR(CheckTlsFiles(options.tls, "election_tls", TlsEnd::kClient));
  }
  auto etcd = std::unique_ptr<Etcd>(new Etcd(std::move(options)));
  for (size_t i = 0; i < etcd->connections_.size(); ++i) {
    if (etcd->connections_[i]->valid()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", etcd->options_.endpoints[i], "' is not usable as an etcd endpoint"));
  }
  return etcd;
}

Etcd::Etcd(EtcdOptions options) : options_(std::move(options)) {
  for (const std::string& endpoint : options_.endpoints)
    connections_.push_back(std::make_unique<Connection>(endpoint, options_));
}

Etcd::~Etcd() = default;

absl::StatusOr<std::string> Etcd::Post(const std::string& path, const std::string& body, size_t tries) {
  absl::Status last;
  for (size_t tried = 0; tried < tries; ++tried) {
    Connection& connection = *connections_[current_];
    const httplib::Result result = connection.Post(path, body);
    if (result && result->status == 200) return connection.reply();
    last =
        result
            ? EtcdErrorIn(connection.reply(), result->status)
            : absl::UnavailableError(absl::StrCat("etcd at ", options_.endpoints[current_],
                                                  " does not answer: ", httplib::to_string(result.error())));
    // These errors would be the same at every other member.
    switch (last.code()) {
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kPermissionDenied:
      case absl::StatusCode::kUnauthenticated:
      case absl::StatusCode::kFailedPrecondition: return last;
      default: break;
    }
    current_ = (current_ + 1) % connections_.size();
  }
  return last;
}

absl::StatusOr<int64_t> Etcd::Grant(absl::Duration ttl) {
  const auto seconds = static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(ttl)));
  BFIO_ASSIGN_OR_RETURN(const auto reply,
                        PostToAny("/v3/lease/grant", JsonText(json{{"TTL", absl::StrCat(seconds)}})));
  return LeaseIn(reply, seconds);
}

absl::StatusOr<bool> Etcd::Renew(int64_t lease) {
  const auto reply = PostToAny("/v3/lease/keepalive", JsonText(json{{"ID", absl::StrCat(lease)}}));
  if (absl::IsNotFound(reply.status())) return false;
  if (!reply.ok()) return reply.status();
  return RenewedIn(*reply, lease);
}

absl::Status Etcd::Revoke(int64_t lease) {
  return PostToAny("/v3/lease/revoke", JsonText(json{{"ID", absl::StrCat(lease)}})).status();
}

absl::StatusOr<EtcdOwner> Etcd::Read(const std::string& key) {
  return ReadFrom(key, connections_.size());
}

absl::StatusOr<EtcdOwner> Etcd::ReadOnce(const std::string& key) {
  return ReadFrom(key, 1);
}

absl::StatusOr<EtcdOwner> Etcd::ReadFrom(const std::string& key, size_t tries) {
  BFIO_ASSIGN_OR_RETURN(const auto reply,
                        Post("/v3/kv/range", JsonText(json{{"key", absl::Base64Escape(key)}}), tries));
  return OwnerIn(reply);
}

absl::StatusOr<EtcdClaim> Etcd::Claim(const std::string& key, const std::string& name, int64_t lease) {
  const std::string place = absl::Base64Escape(key);
  json put;
  put["requestPut"] = {{"key", place}, {"value", absl::Base64Escape(name)}, {"lease", absl::StrCat(lease)}};
  json range;
  range["requestRange"] = {{"key", place}};
  json transaction;
  transaction["compare"] =
      json::array({{{"target", "CREATE"}, {"key", place}, {"createRevision", "0"}, {"result", "EQUAL"}}});
  transaction["success"] = json::array({put});
  transaction["failure"] = json::array({range});
  BFIO_ASSIGN_OR_RETURN(const auto reply, PostToAny("/v3/kv/txn", JsonText(transaction)));
  return ClaimIn(reply, name);
}

absl::Status EtcdErrorIn(absl::string_view reply, int http) {
  const json object = Parse(reply);
  // {"error": text, "code": number}; since 3.6 {"code", "message"}; for streams {"error": {"grpc_code",
  // "message"}}.
  const json& inner = FieldOf(object, "error");
  const json& error = inner.is_object() ? inner : object;
  const json& words = inner.is_string() ? inner : FieldOf(error, "message");
  const std::string said = absl::StrCat(
      "etcd error: ", words.is_string() ? words.get_ref<const std::string&>() : absl::StrCat("HTTP ", http));
  // gRPC's status codes, which absl shares.
  const int64_t code = std::max(Number(error, "code"), Number(error, "grpc_code"));
  if (code < 1 || code > 16) return absl::UnavailableError(said);
  return absl::Status(static_cast<absl::StatusCode>(code), said);
}

absl::StatusOr<int64_t> LeaseIn(absl::string_view reply, int64_t seconds) {
  const json said = Parse(reply);
  const int64_t id = Number(said, "ID");
  if (id == 0) return absl::UnavailableError("etcd's answer has no lease");
  if (Number(said, "TTL") < seconds)
    return absl::UnavailableError(absl::StrCat("etcd grants no lease of ", seconds, " s"));
  return id;
}

absl::StatusOr<bool> RenewedIn(absl::string_view reply, int64_t lease) {
  const json said = Parse(reply);
  const json& result = FieldOf(said, "result");
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
  if (FieldOf(said, "succeeded") == true) {
    const int64_t revision = Number(FieldOf(said, "header"), "revision");
    if (revision <= 0) return absl::UnavailableError("etcd's answer has no revision");
    return EtcdClaim{true, {name, revision}};
  }
  const json& responses = FieldOf(said, "responses");
  if (!responses.is_array() || responses.empty())
    return absl::UnavailableError("etcd's answer does not name the key's owner");
  BFIO_ASSIGN_OR_RETURN(EtcdOwner owner, OwnerOf(FieldOf(responses[0], "response_range")));
  if (owner.name.empty()) return absl::UnavailableError("the key was released in the meantime");
  return EtcdClaim{false, std::move(owner)};
}

}  // namespace bfio::router
