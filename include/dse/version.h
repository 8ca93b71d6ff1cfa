#ifndef DSE_VERSION_H
#define DSE_VERSION_H

#define DSE_VERSION "0.1.0"

#endif
