#include "router/group/model_book.h"

#include <algorithm>

namespace bfio::router {

uint32_t ModelBook::NumberOf(const std::string& model) {
  if (models_.size() >= kMaxModels && !models_.contains(model))
    std::erase_if(models_, [](const auto& entry) { return !entry.second.served; });
  Model& entry = models_[model];
  if (entry.number == 0) {
    entry.number = ++last_;
    ListKnown();
  }
  return entry.number;
}

bool ModelBook::Expect(const std::string& model, absl::Time now) {
  const bool fresh = !models_.contains(model);
  NumberOf(model);
  Model& entry = models_[model];
  if (!entry.served && !entry.gone) entry.unserved_since = std::min(entry.unserved_since, now);
  return fresh;
}

void ModelBook::SetServed(absl::Span<const uint32_t> served, absl::Time now) {
  bool back = false;
  for (auto& [name, model] : models_) {
    const bool was = model.served;
    model.served = std::find(served.begin(), served.end(), model.number) != served.end();
    if (model.served) {
      model.unserved_since = absl::InfiniteFuture();
      back = back || model.gone;
      model.gone = false;
    } else if (was) {
      model.unserved_since = now;
    }
  }
  if (back) ListKnown();
}

void ModelBook::Expire(absl::Duration patience, absl::Time now) {
  bool any = false;
  for (auto& [name, model] : models_) {
    if (now < model.unserved_since + patience) continue;
    model.unserved_since = absl::InfiniteFuture();
    model.gone = any = true;
  }
  if (any) ListKnown();
}

absl::Time ModelBook::NextExpiry(absl::Duration patience) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, model] : models_) next = std::min(next, model.unserved_since + patience);
  return next;
}

void ModelBook::ListKnown() {
  known_.clear();
  for (const auto& [name, model] : models_) {
    if (!model.gone) known_[model.number] = name;
  }
}

}  // namespace bfio::router
