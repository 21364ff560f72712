// A result file of an earlier run (ToJson).
//
// Purpose: its content is not trusted, so a value that is missing, null or of another type is NaN, empty text
// or an empty list. Threads: immutable; copies share the document. Paths are JSON pointers: "/ttft_s/p99".
#ifndef BFIO_TOOLS_LOADGEN_RUN_DOCUMENT_H_
#define BFIO_TOOLS_LOADGEN_RUN_DOCUMENT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace bfio::loadgen {

class RunDocument {
 public:
  // `name` identifies the run in a comparison. INVALID_ARGUMENT for text that is not a JSON object with the
  // results of a run.
  static absl::StatusOr<RunDocument> Parse(absl::string_view text, std::string name);
  // NOT_FOUND for a file that cannot be read, INVALID_ARGUMENT for a file that is too large or contains no
  // run. The run's name is the file's name without folder and ".json".
  static absl::StatusOr<RunDocument> Read(const std::string& path);

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  double Number(const std::string& path) const;
  // 0 where Number is NaN.
  int64_t Count(const std::string& path) const;
  std::string Text(const std::string& path) const;
  // Members of an object in their order, with values as text: strings as they are, others as JSON.
  std::vector<std::pair<std::string, std::string>> Members(const std::string& path) const;

 private:
  RunDocument(std::shared_ptr<const nlohmann::ordered_json> json, std::string name)
      : json_(std::move(json)), name_(std::move(name)) {}

  const nlohmann::ordered_json* Find(const std::string& path) const;

  std::shared_ptr<const nlohmann::ordered_json> json_;
  std::string name_;
};

}  // namespace bfio::loadgen

#endif  // BFIO_TOOLS_LOADGEN_RUN_DOCUMENT_H_
