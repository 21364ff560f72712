#include "router/election/etcd.h"

// The distribution's libcpp-httplib is built with it: both must see the same classes.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

using nlohmann::json;

// etcd's answers of a few hundred bytes; whoever sends more is not etcd.
constexpr size_t kMaxReply = 1 << 20;

// The gateway writes 64-bit numbers as strings, and leaves out what is 0.
int64_t Number(const json& object, const char* name) {
  const auto at = object.find(name);
  if (at == object.end()) return 0;
  if (at->is_number_integer()) return at->get<int64_t>();
  int64_t number = 0;
  return at->is_string() && absl::SimpleAtoi(at->get_ref<const std::string&>(), &number) ? number : 0;
}

// Null where there is none.
const json& Member(const json& object, const char* name) {
  static const json none;
  const auto at = object.find(name);
  return at == object.end() ? none : *at;
}

json Parse(const std::string& text) {
  json parsed = json::parse(text, nullptr, false);
  return parsed.is_object() ? parsed : json::object();
}

// From gRPC's numbers, which absl shares.
absl::Status ErrorOf(const std::string& body, int http) {
  const json error = Parse(body);
  const auto code = static_cast<int>(Number(error, "code"));
  const json& words = Member(error, "error");
  const std::string said = words.is_string() ? words.get<std::string>() : absl::StrCat("HTTP ", http);
  if (code > 0 && code <= 16)
    return absl::Status(static_cast<absl::StatusCode>(code), absl::StrCat("etcd says: ", said));
  return absl::UnavailableError(absl::StrCat("etcd says: ", said));
}

Etcd::Owner OwnerIn(const json& range) {
  if (!range.is_object()) return {};
  const json& found = Member(range, "kvs");
  if (!found.is_array() || found.empty() || !found[0].is_object()) return {};
  Etcd::Owner owner;
  const json& value = Member(found[0], "value");
  if (value.is_string()) absl::Base64Unescape(value.get_ref<const std::string&>(), &owner.name);
  owner.revision = Number(found[0], "create_revision");
  return owner;
}

}  // namespace

class Etcd::Connection {
 public:
  explicit Connection(const std::string& endpoint, const EtcdOptions& options)
      : client_(endpoint, options.cert, options.key) {
    const auto microseconds = absl::ToInt64Microseconds(options.timeout);
    const time_t seconds = microseconds / 1'000'000, rest = microseconds % 1'000'000;
    client_.set_connection_timeout(seconds, rest);
    client_.set_read_timeout(seconds, rest);
    client_.set_write_timeout(seconds, rest);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);
    if (!options.ca.empty()) client_.set_ca_cert_path(options.ca.c_str());
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
    return client_.send(request);
  }
  const std::string& reply() const { return reply_; }

 private:
  httplib::Client client_;
  std::string reply_;
};

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::Create(EtcdOptions options) {
  if (options.endpoints.empty()) return absl::InvalidArgumentError("no endpoint of etcd is given");
  if (options.cert.empty() != options.key.empty())
    return absl::InvalidArgumentError("a certificate and its key go together");
  for (const std::string& endpoint : options.endpoints) {
    if (!absl::StartsWith(endpoint, "http://") && !absl::StartsWith(endpoint, "https://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", endpoint, "': an endpoint of etcd is http://HOST:PORT or https://HOST:PORT"));
    }
  }
  auto etcd = std::unique_ptr<Etcd>(new Etcd(std::move(options)));
  for (size_t i = 0; i < etcd->connections_.size(); ++i) {
    if (etcd->connections_[i]->valid()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("'", etcd->options_.endpoints[i], "' is no endpoint, or its TLS files cannot be used"));
  }
  return etcd;
}

Etcd::Etcd(EtcdOptions options) : options_(std::move(options)) {
  for (const std::string& endpoint : options_.endpoints)
    connections_.push_back(std::make_unique<Connection>(endpoint, options_));
}

Etcd::~Etcd() = default;

absl::StatusOr<std::string> Etcd::Post(const std::string& path, const std::string& body) {
  absl::Status last;
  for (size_t tried = 0; tried < connections_.size(); ++tried) {
    Connection& connection = *connections_[current_];
    const httplib::Result result = connection.Post(path, body);
    if (result && result->status == 200) return connection.reply();
    last =
        result
            ? ErrorOf(connection.reply(), result->status)
            : absl::UnavailableError(absl::StrCat("etcd at ", options_.endpoints[current_],
                                                  " does not answer: ", httplib::to_string(result.error())));
    if (!absl::IsUnavailable(last)) return last;
    current_ = (current_ + 1) % connections_.size();
  }
  return last;
}

absl::StatusOr<int64_t> Etcd::Grant(absl::Duration ttl) {
  const auto seconds = static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(ttl)));
  const auto reply = Post("/v3/lease/grant", json{{"TTL", absl::StrCat(seconds)}}.dump());
  if (!reply.ok()) return reply.status();
  const int64_t id = Number(Parse(*reply), "ID");
  if (id == 0) return absl::UnavailableError("etcd granted a lease without an id");
  return id;
}

absl::StatusOr<bool> Etcd::Renew(int64_t lease) {
  const auto reply = Post("/v3/lease/keepalive", json{{"ID", absl::StrCat(lease)}}.dump());
  if (absl::IsNotFound(reply.status())) return false;
  if (!reply.ok()) return reply.status();
  const json said = Parse(*reply);
  const json& result = Member(said, "result");
  return result.is_object() && Number(result, "TTL") > 0;
}

absl::Status Etcd::Revoke(int64_t lease) {
  return Post("/v3/lease/revoke", json{{"ID", absl::StrCat(lease)}}.dump()).status();
}

absl::StatusOr<Etcd::Owner> Etcd::Read(const std::string& key) {
  const auto reply = Post("/v3/kv/range", json{{"key", absl::Base64Escape(key)}}.dump());
  if (!reply.ok()) return reply.status();
  return OwnerIn(Parse(*reply));
}

absl::StatusOr<Etcd::Claimed> Etcd::Claim(const std::string& key, const std::string& name, int64_t lease) {
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
  const auto reply = Post("/v3/kv/txn", transaction.dump());
  if (!reply.ok()) return reply.status();
  const json said = Parse(*reply);
  if (Member(said, "succeeded") == true) {
    const json& header = Member(said, "header");
    const int64_t revision = header.is_object() ? Number(header, "revision") : 0;
    if (revision <= 0) return absl::UnavailableError("etcd's answer has no revision");
    return Claimed{true, {name, revision}};
  }
  const json& responses = Member(said, "responses");
  Claimed claimed;
  if (responses.is_array() && !responses.empty() && responses[0].is_object())
    claimed.owner = OwnerIn(Member(responses[0], "response_range"));
  if (claimed.owner.name.empty()) return absl::UnavailableError("etcd's answer does not say who has the key");
  return claimed;
}

}  // namespace bfio::router
