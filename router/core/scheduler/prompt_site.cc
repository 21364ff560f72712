#include "router/core/scheduler/prompt_site.h"

#include <algorithm>

namespace bfio::core {

double AddedSeconds(const PromptSite& site) {
  const BatchCost& batch = site.cost.batch;
  const GroupTerms& terms = site.cost.terms;
  const int64_t before = site.rows + site.pending;
  double step_s = WholePromptSeconds(batch, site.prompt, std::max<int64_t>(0, batch.b0_tokens - before));
  if (site.decodes) {
    if (site.pending == 0) step_s += terms.prompt_s;
    if (before <= terms.captured_rows && before + site.prompt.left > terms.captured_rows)
      step_s += terms.eager_s;
  }
  const double own_s =
      batch.a_s_per_token * static_cast<double>(site.pending) + (site.decodes ? 0 : batch.c_s);
  return own_s + (1 + site.delayed) * step_s;
}

}  // namespace bfio::core
