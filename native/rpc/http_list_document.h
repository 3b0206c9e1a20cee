#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "native/rpc/http_document.h"

namespace millpond::rpc {

// A document that lists many things, like the readiness of a thousand models. A change of one item
// costs the size of this item. The next reader pays for joining all items.
//
// Thread: one at a time.
class HttpListDocument {
 public:
  // The texts around the items.
  struct Frame {
    int status = 200;
    std::string head;
    std::string tail;
  };

  void SetFrame(Frame frame);
  void SetItems(std::vector<std::string> items);
  // Does nothing if there is no item at `index`.
  void SetItem(size_t index, std::string item);

  bool has_frame() const { return frame_.has_value(); }
  // Returns the head, the items with commas between them, and the tail; null without a frame.
  std::shared_ptr<const HttpDocument> Read();

 private:
  std::optional<Frame> frame_;
  std::vector<std::string> items_;
  std::shared_ptr<const HttpDocument> joined_;  // null after a change
};

}  // namespace millpond::rpc
