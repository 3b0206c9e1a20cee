#include "native/rpc/http_list_document.h"

#include <utility>

namespace millpond::rpc {

void HttpListDocument::SetFrame(Frame frame) {
  frame_ = std::move(frame);
  joined_ = nullptr;
}

void HttpListDocument::SetItems(std::vector<std::string> items) {
  items_ = std::move(items);
  joined_ = nullptr;
}

void HttpListDocument::SetItem(size_t index, std::string item) {
  if (index >= items_.size()) return;
  items_[index] = std::move(item);
  joined_ = nullptr;
}

std::shared_ptr<const HttpDocument> HttpListDocument::Read() {
  if (joined_ != nullptr || !frame_) return joined_;
  size_t size = frame_->head.size() + frame_->tail.size();
  for (const std::string& item : items_) size += item.size() + 1;
  auto made = std::make_shared<HttpDocument>();
  made->status = frame_->status;
  made->body.reserve(size);
  made->body = frame_->head;
  const char* separator = "";
  for (const std::string& item : items_) {
    made->body.append(std::exchange(separator, ",")).append(item);
  }
  made->body += frame_->tail;
  joined_ = std::move(made);
  return joined_;
}

}  // namespace millpond::rpc
