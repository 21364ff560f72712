// A page with one chart of each kind that reports use, from made-up but plausible data.
//
// Purpose: something to test whole pages with, and to look at. Deterministic. Threads: pure function.
#ifndef BFIO_TESTS_UNIT_REPORT_SAMPLE_PAGE_H_
#define BFIO_TESTS_UNIT_REPORT_SAMPLE_PAGE_H_

#include "tools/report/page.h"

namespace bfio::report {

// `points` per line of the dense charts.
Page SamplePage(int points);

}  // namespace bfio::report

#endif  // BFIO_TESTS_UNIT_REPORT_SAMPLE_PAGE_H_
