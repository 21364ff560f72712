// A self-contained HTML page: text, parameters, tables and charts, in the order they were added.
//
// Purpose: a report that can be mailed, archived and opened anywhere: one file, no network, no scripts. It
// follows the reader's light or dark theme, and every chart carries a title, a description and its numbers as
// a table. Text is plain text and is escaped here. The same calls give the same bytes. Threads: no locks; one
// thread builds a page.
#ifndef BFIO_TOOLS_REPORT_PAGE_H_
#define BFIO_TOOLS_REPORT_PAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "tools/report/chart.h"
#include "tools/report/table.h"

namespace bfio::report {

class Page {
 public:
  explicit Page(std::string title);

  void Lead(std::string paragraph);  // larger text that says what the page shows
  void Heading(std::string text);
  void Text(std::string paragraph);
  // Name and value pairs, e.g. the options of a run.
  void Parameters(std::vector<std::pair<std::string, std::string>> parameters);
  // Rendered at once: the page keeps no copy of the data.
  void Add(Table table);
  void Add(Chart chart);

  std::string Html() const;

 private:
  std::string title_;
  std::string lead_;  // what comes before the contents
  std::string body_;
  std::vector<std::string> headings_;
  int charts_ = 0;
};

}  // namespace bfio::report

#endif  // BFIO_TOOLS_REPORT_PAGE_H_
