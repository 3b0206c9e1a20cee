#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "native/rpc/http_document.h"

namespace millpond::rpc {

// A document that lists many things, like the readiness of a thousand models. A change of one item
// costs the size of this item. The next reader pays for joining all items.
//
// Thread: one at a time.
class HttpListDocument {
 public:
  // The status and the text before the items, which sum the items up.
  struct Head {
    int status = 200;
    std::string text;
  };
  using NumberedItems = std::vector<std::pair<size_t, std::string>>;

  HttpListDocument(Head head, std::vector<std::string> items, std::string tail);

  // Replaces the head and these items at once, so that no reader sees one without the other. An
  // item with a number that the list does not have is ignored.
  void Change(Head head, NumberedItems items);

  // Returns the head, the items with commas between them, and the tail.
  std::shared_ptr<const HttpDocument> Read();

 private:
  Head head_;
  std::vector<std::string> items_;
  const std::string tail_;
  std::shared_ptr<const HttpDocument> joined_;  // null after a change
};

}  // namespace millpond::rpc
