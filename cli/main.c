/* The kvcanary command. */
#include "kvcanary.h"

#include <stdio.h>

int main(void)
{
	printf("kvcanary %s\n", kvc_version());
	return 0;
}
