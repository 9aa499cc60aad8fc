// The same from C++.
#include <kvcanary.h>

#include <iostream>
#include <string>

int main()
{
	if (kvc_scatter_req_token_ids(nullptr, nullptr) != KVC_E_INVALID_ARGUMENT)
		return 1;
	std::cout << "kvcanary " << kvc_version() << ": " << kvc_last_error()->slug << "\n";
	return std::string(kvc_version()).empty();
}
