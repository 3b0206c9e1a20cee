#include "native/rpc/http_list_document.h"

namespace millpond::rpc {

HttpListDocument::HttpListDocument(Head head, std::vector<std::string> items, std::string tail)
    : head_(std::move(head)), items_(std::move(items)), tail_(std::move(tail)) {}

void HttpListDocument::Change(Head head, NumberedItems items) {
  head_ = std::move(head);
  for (auto& [number, item] : items) {
    if (number < items_.size()) items_[number] = std::move(item);
  }
  joined_ = nullptr;
}

std::shared_ptr<const HttpDocument> HttpListDocument::Read() {
  if (joined_ != nullptr) return joined_;
  size_t size = head_.text.size() + tail_.size();
  for (const std::string& item : items_) size += item.size() + 1;
  auto made = std::make_shared<HttpDocument>();
  made->status = head_.status;
  made->body.reserve(size);
  made->body = head_.text;
  const char* separator = "";
  for (const std::string& item : items_) {
    made->body.append(std::exchange(separator, ",")).append(item);
  }
  made->body += tail_;
  joined_ = std::move(made);
  return joined_;
}

}  // namespace millpond::rpc
