// JSON from untrusted files. The two ways in which this module reads JSON: a small document as a tree, of
// bounded size and depth and without repeated fields; and the common part of all event handlers for streams.
// Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_JSON_H_
#define BFIO_WORKER_ENGINE_MODEL_JSON_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio::worker {

// Parses an object. INVALID_ARGUMENT: not JSON, not an object, too large, too deep, or a repeated field; the
// message begins with `path`.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view json, absl::string_view path);

// An event handler that rejects everything; a reader overrides the events that its grammar allows. The first
// error ends the parse.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  // Parses all of `json`. Returns the error, or an empty string.
  std::string Parse(absl::string_view json);

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool string(string_t&) override { return Unexpected("a string"); }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool start_object(std::size_t) override { return Unexpected("an object"); }
  bool key(string_t&) override { return Unexpected("a field"); }
  bool end_object() override { return Unexpected("the end of an object"); }
  bool start_array(std::size_t) override { return Unexpected("an array"); }
  bool end_array() override { return Unexpected("the end of an array"); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override;

 protected:
  // Ends the parse with an error.
  bool Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  // The current position in the document, for messages: "in 'model.norm.weight', shape".
  virtual std::string Where() const = 0;

 private:
  bool Unexpected(absl::string_view what);

  std::string fault_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_JSON_H_
